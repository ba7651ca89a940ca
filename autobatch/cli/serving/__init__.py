"""`autobatch serve`: the predictions of a trained model over HTTP."""
