// Package systemd is what this program has to do with systemd: the text of its
// unit, putting unit and binary in place and taking them away again, and telling
// the manager that the service is ready.
//
// An installation is whole or not there: what fails in the middle is taken back,
// and an upgrade whose service does not come up leaves the version before it.
// Containers are never touched: the unit ends the process and nothing else.
//
// It must not know what the service does, nor what its flags mean.
package systemd
