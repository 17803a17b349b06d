package main

import "github.com/sirupsen/logrus"

// quiet drops a message of the stock service: when a shim ends, it complains that it cannot
// watch any longer for containers that run out of memory. The message would appear on the
// terminal of the user who stops the node.
type quiet struct{ logrus.Formatter }

func (q quiet) Format(entry *logrus.Entry) ([]byte, error) {
	if entry.Message == "cgroups: epoll wait" {
		return nil, nil
	}
	return q.Formatter.Format(entry)
}
