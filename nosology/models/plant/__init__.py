"""PLANT: attention initialised from mutual information and a learned ranker."""
