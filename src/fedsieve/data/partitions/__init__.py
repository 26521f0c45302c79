"""How a data set is split over clients."""
