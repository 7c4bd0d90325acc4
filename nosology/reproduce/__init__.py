"""Tables and figures of four papers, computed with the public parts of the package (docs/reproduce.md)."""

PAPERS = {  # name on the command line -> module, which has TITLE, TABLES, SMALL, STUDY, simulate and tables
    "federated-heads": "nosology.reproduce.federated_heads_tables",
    "dual-laat": "nosology.reproduce.dual_laat_tables",
    "hmhan": "nosology.reproduce.hmhan_tables",
    "plant": "nosology.reproduce.plant_tables",
}
