"""From a rendered image to one that the engine has: options, tiers, progress, bill of materials."""
