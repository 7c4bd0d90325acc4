"""DualLAAT: notes and code descriptions are both encoded."""
