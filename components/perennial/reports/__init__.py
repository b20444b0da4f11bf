"""What people look at: self-contained HTML pages with hand-drawn charts, one per step and run."""
