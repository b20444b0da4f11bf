"""Reports: self-contained HTML pages with SVG charts, one per step and run."""
