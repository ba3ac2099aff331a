# `make demo` shows it, `make test` and `make integrations` check it, `make docs` builds the site.
# Each makes .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test integrations check style types evidence docs chromium clean

demo: .venv/installed
	$(BIN)/longtail demo

# Tests write many small files, which is faster in memory; they take it if 4 GB of it are free.
MEMORY := $(shell df -k /dev/shm 2> /dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')

test: .venv/installed check chromium
	@folder=$$(mktemp -d $(or $(MEMORY),$${TMPDIR:-/tmp})/longtail-XXXXXX) && trap 'rm -rf "$$folder"' EXIT INT TERM && \
	TMPDIR=$$folder $(BIN)/python -m pytest --ignore tests/integrations --ignore tests/detection/test_lvis_api.py

# The scripts of docs/integrations, run with the real libraries, and our AP against LVIS's own API.
integrations: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[huggingface,ray,ultralytics]' --group integrations
	$(BIN)/python -m pytest tests/integrations tests/detection/test_lvis_api.py

check: .venv/installed
	$(MAKE) --no-print-directory --jobs 2 types evidence style

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

evidence:
	$(BIN)/python -m benchmarks check

docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv/installed
	$(BIN)/mkdocs build --strict

# The report is tested in a real browser; without one those tests skip.
chromium:
	@if command -v chromium > /dev/null || command -v chromium-browser > /dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing chromium for the tests of the report"; \
	  { apt-get -qq update; apt-get -qq install --yes --no-install-recommends chromium; } > /dev/null 2>&1 \
	  || echo "chromium could not be installed: the tests of the report in a browser will be skipped"; \
	else echo "no chromium (apt-get install chromium): the tests of the report in a browser will be skipped"; fi

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "longtail needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

clean:
	rm -rf .venv runs site
