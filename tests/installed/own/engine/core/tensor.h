// A header of the user's that has the name of one of nestgrad's.
#error "nestgrad includes a header of the user's instead of its own"
