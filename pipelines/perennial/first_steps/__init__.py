"""First steps: is the machine ready, and a first contract for one's own data."""
