// Package cli is the command line of Cloudless: the commands for the nouns of the API, one file for each noun. Its
// subpackages hold the commands for this machine (local), logs, exec, cp and forward (stream), waiting (wait), widgets
// (terminal) and what all commands share (command).
//
// It guarantees that
//   - results go to standard output and everything else to standard error, so that output can be piped;
//   - an error is one sentence with a way out, and the exit code tells a usage error (2) from others (1), an
//     interrupt (130) and, for exec, the command's own; for plan, 2 means that something would change, and
//     commands that wait for a deployment end with 3 if it failed and with 4 if it was rolled back;
//   - -o json and -o yaml are the API's own JSON, with lists as {"items": […]};
//   - it never writes a secret into an argument list.
//
// It calls the cluster only through package client. It must not know how a server or agent is built: main passes the
// roles in.
package cli
