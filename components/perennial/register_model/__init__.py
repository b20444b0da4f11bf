"""Step: register a promoted challenger and make it the champion."""
