// Package layers holds the tests of the architecture itself: imports only go
// down, and every package says what it is.
package layers
