"""An imported model beside the original that it was imported from: where they part first, and why."""
