# What there is to do here. `make` alone lists it.

.DEFAULT_GOAL := help
SHELL := /bin/sh
PY := .venv/bin/python
CHECKED := src tests tools bench examples

# Without bytecode on disk every start of a broker would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

READY := .venv/.ready
PROGRAMS := .cache/programs.ready
JARS := .cache/jars.ready
KAFKAJS := .cache/kafkajs.ready
WHEELS := .cache/wheels.ready
CLASSES := .cache/spark/classes.jsa

.PHONY: help setup run running dist test lint format unit sim mutants search integration conformance faults fuzz spark browser chaos bench clients page soak golden docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(PROGRAMS) $(READY) $(WHEELS) $(JARS) $(KAFKAJS) ## everything a fresh machine needs, in .venv and .cache

run: running $(READY) ## a shop in real time: broker, events, pipeline on Spark, live page
	@SCRIBA_SPARK_CLASSES=$(CURDIR)/$(CLASSES) exec .venv/bin/scriba demo

running:
	@tools/setup.sh running

dist: ## an sdist and a manylinux wheel, in dist; PURE=1 for one without the extension as well
	@tools/setup.sh dist

test: setup ## lint, types and all tests; the bar for a change
	@$(PY) -m tools.check

lint: $(READY) ## ruff and mypy
	@$(PY) -m tools.check lint

format: $(READY) ## let ruff put the code in order
	@.venv/bin/ruff check --fix $(CHECKED)
	@.venv/bin/ruff format $(CHECKED)

unit: $(READY) ## tests of single rooms
	@$(PY) -m pytest tests/test_layers.py tests/test_packages.py tests/unit tests/golden

sim: $(READY) ## whole nodes on simulated time; SEEDS=n for more
	@$(PY) -m pytest tests/sim

mutants: $(READY) ## broken variants of the broker, each found by the simulator
	@MUTANTS=all $(PY) -m pytest tests/sim/mutants tests/unit/raft/test_quorum_storms.py

search: $(READY) ## what a night may take: new examples, new seeds, all mutants; HOURS=8
	@$(PY) -m tools.search --hours $(or $(HOURS),8)

integration: $(READY) $(WHEELS) ## tests of a running node
	@$(PY) -m pytest tests/integration

conformance: setup ## programs that others wrote, against a running node
	@$(PY) -m pytest tests/conformance

faults: setup ## crashes, torn files, bad input
	@$(PY) -m pytest tests/faults tests/integration/bad_input tests/conformance/files/test_restart.py

fuzz: setup ## libFuzzer against the extension; SECONDS=60 for each target, ARGS='--keep lz4'
	@$(PY) -m tests.fuzz --seconds $(or $(SECONDS),60) $(ARGS)

spark: setup ## the data source and the sink, on a local Spark
	@$(PY) -m pytest tests/spark

chaos: setup ## everything killed at every step: nodes (an hour, SCRIBA_CHAOS_S), Spark, inventory
	@SCRIBA_CHAOS=1 $(PY) -m pytest -s tests/faults/test_cluster_processes.py tests/faults/test_moves_killed.py tests/integration/inventory/test_crash.py tests/spark/connector/test_crashes.py

browser: setup ## the shop's page in headless Chromium
	@$(PY) -m pytest tests/browser

bench: setup ## side by side with Apache Kafka, into bench/RESULTS.md; ROWS=cluster SCALE=0.1 ARGS=--keep
	@$(PY) -m bench.run $(if $(ROWS),--rows $(ROWS)) $(if $(SCALE),--scale $(SCALE)) $(ARGS)

clients: setup ## client libraries beside each other, into bench/CLIENTS.md; ARGS=--quick
	@$(PY) -m bench.clients $(ARGS)

page: $(READY) ## from an event to the shop's page, in seconds; ARGS='--probes 60'
	@$(PY) -m bench.event_to_page $(ARGS)

soak: $(READY) ## a node under mixed work, flat in memory and descriptors; MINUTES=20
	@$(PY) -m bench.soak --minutes $(or $(MINUTES),20)

golden: setup ## record again what Apache Kafka's jars encode and declare
	@tests/golden/make.sh
	@java -cp '.cache/kafka/lib/*' tools/settings/DumpSettings.java > tests/unit/settings/kafka-4.3.0.tsv

docs: $(READY) ## write the pages of settings, metrics and events, and the clients' typed settings from the declarations
	@$(PY) -m tools.reference
	@$(PY) -m tools.observability
	@$(PY) -m tools.keywords

clean: ## remove what was built and cached, not the data
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(PROGRAMS): tools/setup.sh
	@tools/setup.sh programs
	@mkdir -p $(@D) && touch $@

$(READY): pyproject.toml constraints.txt $(wildcard setup.py src/native/*.c src/native/*.h)
	@tools/setup.sh python
	@touch $@

$(JARS): tools/kafka/pom.xml tools/streams/pom.xml tools/spark/pom.xml $(READY) $(PROGRAMS)
	@tools/setup.sh jars
	@mkdir -p $(@D) && touch $@

$(WHEELS): pyproject.toml constraints.txt tools/dist/needs.py $(READY)
	@tools/setup.sh wheels
	@touch $@

$(KAFKAJS): tests/conformance/js/package.json $(PROGRAMS)
	@tools/setup.sh kafkajs
	@mkdir -p $(@D) && touch $@
