"""Updates: clipping, optimizer, learning rate schedule, averaged weights."""
