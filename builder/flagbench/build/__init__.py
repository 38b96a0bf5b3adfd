"""From a rendered image to one that the engine has: options, tiers, cache, progress, bill of materials."""
