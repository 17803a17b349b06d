package main

import "github.com/sirupsen/logrus"

// quiet drops a message of the stock service. When a shim ends, the service logs that it
// can no longer watch for OOM kills. The message would appear on the terminal of the user
// who stops the node.
type quiet struct{ logrus.Formatter }

func (q quiet) Format(entry *logrus.Entry) ([]byte, error) {
	if entry.Message == "cgroups: epoll wait" {
		return nil, nil
	}
	return q.Formatter.Format(entry)
}
