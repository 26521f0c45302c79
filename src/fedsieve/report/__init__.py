"""Tables, curves and pages made from finished runs."""
