"""The linear coder: TF-IDF features and one linear SVM per code."""
