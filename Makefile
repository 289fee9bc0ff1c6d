# Needs Python >= 3.11, a Java >= 17 and make; everything else is installed into .venv.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STORE ?= sqlite
MESSAGES ?=
SEEDS ?= 10000
ARGS ?=
# Quick tests want the processor, one for each; the rest mostly waits, for elections or for a JVM: AT_ONCE at a time.
QUICK := not faults and not spark and not cassandra and not packaging and not browser
AT_ONCE ?= 4
ROUNDS ?= 20
KILLS ?= 200
RUNS ?= runs
SECONDS ?= 15

.PHONY: audit browser demo dist docs test lint soak-check soak-check-sim soak-consensus soak-fanout soak-faults soak-outbox mutate bench bench-all bench-peers site clean check-tools

demo: .venv/.ready ## the main job end to end; STORE=cassandra for real Cassandra
	$(BIN)/python -m examples.demo --store $(STORE) $(if $(MESSAGES),--messages $(MESSAGES)) $(ARGS)

# Where an image forbids compiled files, each of some thousand processes would compile all that it imports again.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.ready lint browser ## everything that must be green
	$(BIN)/python -m pytest -m "$(QUICK)" -n auto --dist loadfile --no-loadscope-reorder $(ARGS)
	$(BIN)/python -m pytest -m "not ($(QUICK))" -n $(AT_ONCE) --dist loadgroup --no-loadscope-reorder $(ARGS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.ready ## write the generated parts of the pages: tables of errors, settings, metrics
	$(BIN)/python -m oncegate.gateway.docs

dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
dist: .venv/.ready ## wheel and source distribution in dist/, the same bytes from any copy of this commit, and their sums
	rm -rf dist
	$(BIN)/uv build --quiet --build-constraint deploy/build-constraints.txt --sdist --wheel --out-dir dist
	cd dist && sha256sum *.whl *.tar.gz | tee SHA256SUMS

site: .venv/.ready ## the documentation as pages in build/site; every link and anchor in it leads somewhere, or this fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

browser: ## Chromium for tests/browser, from Debian's packages; without it those tests are skipped, and say so
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif ! command -v apt-get >/dev/null; then echo "no chromium and chromedriver: tests/browser will be skipped"; \
	else as=; [ "$$(id -u)" = 0 ] || as="sudo -n"; \
	  $$as apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null 2>&1 \
	  || { $$as apt-get update -qq && $$as apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 \
	  || echo "chromium could not be installed (root or sudo is needed): tests/browser will be skipped"; \
	fi

soak-faults: .venv/.ready ## the tests with real faults, ROUNDS times as many rounds
	ONCEGATE_SOAK=$(ROUNDS) $(BIN)/python -m pytest tests/faults --timeout 3600 $(ARGS)

soak-consensus: .venv/.ready ## SEEDS simulated clusters with faults; ARGS="--start 10000 --seconds 3600" and the like
	$(BIN)/python -m oncegate.proof.sim.engine --seeds $(SEEDS) --jobs $$(nproc) $(ARGS)

soak-check: SEEDS = 300
soak-check: .venv/.ready ## SEEDS runs of all workloads under all faults; goes on where it was stopped; ARGS="--seconds 30" and the like
	$(BIN)/oncegate check run --all --seeds $(SEEDS) --runs $(RUNS) --resume $(ARGS)

soak-check-sim: .venv/.ready ## SEEDS simulated clusters of gateways with clients, each judged; ARGS="--from 10000 --workload bank" and the like
	$(BIN)/python -m oncegate.proof.sim.gateway --seeds $(SEEDS) --jobs $$(nproc) $(ARGS)

soak-outbox: .venv/.ready ## a worker with an outbox, killed KILLS times while it counts to KILLS * 50
	ONCEGATE_OUTBOX_KILLS=$(KILLS) $(BIN)/python -m pytest tests/faults/test_outbox_kills.py --timeout 3600 $(ARGS)

audit: .venv/.ready ## a bill of materials in RUNS, and what is known to be wrong with what is installed, where that can be asked
	$(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip -q install pip-audit cyclonedx-bom
	$(BIN)/python deploy/audit.py .venv-audit/bin $(BIN)/python $(RUNS)

scenario-%: .venv/.ready ## replay, cassandra-down, rebuilt: SECONDS of each, a page with the lag over time in runs/scenarios
	$(BIN)/python -m bench.scenarios $* --seconds $(SECONDS) $(ARGS)

soak-fanout: SECONDS = 300
soak-fanout: .venv/.ready ## three nodes of gateway and Cassandra, all jobs, kills for SECONDS; ARGS="--seed 2 --case timeline" and the like
	$(BIN)/python -m bench.soak_fanout --seconds $(SECONDS) $(ARGS)

mutate: .venv/.ready ## each small change of the replicated core has to fail a test; ARGS="rifl/lease.py --jobs 2" and the like
	$(BIN)/python -m tests.mutate $(ARGS)

bench: .venv/.ready ## figures of this machine, printed with their calibrations
	$(BIN)/python -m bench.consensus
	$(BIN)/python -m bench.journal
	$(BIN)/python -m bench.sdk
	$(BIN)/python -m bench.ingest
	$(BIN)/python -m bench.dedup
	$(BIN)/python -m bench.sessions
	$(BIN)/python -m bench.lincheck
	$(BIN)/python -m bench.fanout
	$(BIN)/python -m bench.stream_rows

bench-all: .venv/.ready ## every published experiment, and how cost grows, and docs/experiments.md; hours; ARGS=--quick: a sample, in a quarter of an hour
	$(BIN)/python -m bench.experiments $(ARGS)

bench-peers: .venv/.ready ## other systems beside this one, interleaved, and docs/peers.md; needs Go, Maven, npm; ARGS="etcd", "--quick"
	$(BIN)/python -m bench.peers $(ARGS)

clean:
	rm -rf .peers .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist oncegate-data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "missing: Python >= 3.11 (no $(PYTHON) on the path; set PYTHON=)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "missing: Python >= 3.11 ($(PYTHON) is older; set PYTHON=)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "missing: the venv module of Python (Debian: python3-venv)"; exit 1; }
	@major=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	  [ "$${major:-0}" -ge 17 ] || { echo "missing: Java >= 17 (found: $${major:-none})"; exit 1; }

# uv is quick; where it cannot reach an index that pip is configured for, pip does the same from the same lock.
.venv/.ready: pyproject.toml requirements.lock | check-tools
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv<1" || true
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements.lock 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e . 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@
