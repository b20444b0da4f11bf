"""What an update does with a gradient: clipping, optimizer, learning rate, averaged weights."""
