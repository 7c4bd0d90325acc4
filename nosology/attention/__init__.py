"""From token states to one vector a label; every attention takes the lengths of the notes and obeys them."""
