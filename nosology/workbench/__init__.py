"""The workbench: coders review suggestions with evidence, in a browser, and nothing is lost."""
