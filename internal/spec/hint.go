package spec

// Hint is a command that a message tells people to run, which must reach the namespace that the message is about.
func Hint(namespace, command string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return command
	}
	return command + " -n " + namespace
}
