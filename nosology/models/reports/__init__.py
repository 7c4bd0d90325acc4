"""The strong coder of short reports: linear SVMs over marked words, and nets of HMHAN that add to their scores."""
