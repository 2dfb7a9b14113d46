# Short names for what one does every day. `make` alone lists them.
PYTHON ?= .venv/bin/python

help: ## list the targets
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

lint: ## ruff
	$(PYTHON) -m ruff check .

types: ## pyrefly and pyright, strict on ir, ops and passes
	$(PYTHON) -m pytest -q tests/test_types.py --every-case

test: ## every test
	$(PYTHON) -m pytest -q -n auto --dist loadfile

thorough: ## every test, with all cases that tests draw; before merging what concerns passes, searches or gradients
	$(PYTHON) -m pytest -q -n auto --dist loadfile --thorough

quick: ## a minute of tests from every folder, for between two edits
	$(PYTHON) -m pytest -q -m quick -n 2 --dist loadfile

goldens: ## rewrite golden files, the tree of folders and docs/reference/names.md where they differ, then look at `git diff`
	$(PYTHON) -m pytest -q tests/passes tests/test_tree.py tests/test_names_page.py --update-goldens

docs: ## the site of docs/ in build/site, with every link followed; needs the extra `docs`
	$(PYTHON) docs/site/build.py

pictures: ## docs/images anew, from pages in Chromium; then look at them
	$(PYTHON) docs/site/pictures.py

gpu: ## the tests that need GPUs; each says why where it is skipped
	$(PYTHON) -m pytest -q -rs tests/gpu

.PHONY: help lint types test thorough quick goldens docs pictures gpu
