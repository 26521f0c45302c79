"""Small pure pieces that everything else stands on."""
