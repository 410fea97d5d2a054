"""An edge gateway's time-series appliance: MQTT in, write-ahead log, Parquet out, SQL over both."""

__version__ = "0.1.0"
