"""Review of suggested codes in a browser, with a JSON API, a work queue and an append-only history."""
