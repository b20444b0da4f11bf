"""Step 4: train the model, and resume it whatever happens."""
