package spec

// Hint is a command for people to run, with the namespace that the message is about.
func Hint(namespace, command string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return command
	}
	return command + " -n " + namespace
}
