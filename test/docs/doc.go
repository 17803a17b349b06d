// Package docs checks the documentation. It runs every block of commands in the README and in the tutorial, in order,
// as a newcomer would, on two machines that are network namespaces. It also runs the commands of the recording in the
// README, and follows every link.
//
// Blocks of the language sh run on the first machine, blocks of "sh there" on the second. A block of text right after
// one of them is compared with the output: each of its lines must be in it, where … stands for anything.
package docs
