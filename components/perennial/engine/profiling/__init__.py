"""Where the time and the memory of a step go, and which knob follows from it."""
