// Package docs does what the documentation says: it runs every block of commands
// of the README and of the tutorial, in order, as a newcomer with nothing but this
// repository would, on two machines that are network namespaces; and it follows
// every link.
//
// Blocks of the language sh are run here, those of "sh there" on the second
// machine. A block of text right after one is compared with what was printed:
// each of its lines must be among it, … standing for anything.
package docs
