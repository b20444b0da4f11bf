"""Step 4: train the model, with resume after interruptions."""
