"""What a run is and how far it is: settings, plan, records, progress."""
