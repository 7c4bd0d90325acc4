"""Generic training: trainer, batches, checkpoints, calibration. It knows no model."""
