"""A task package of one's own; a contract names it `clicks.smooth:SmoothClicks`."""
