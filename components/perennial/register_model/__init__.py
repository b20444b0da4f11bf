"""Puts a promoted challenger on record and makes it the champion."""
