// Package systemd writes the unit of this program, installs and uninstalls unit and binary, and tells systemd that the
// service is ready.
//
// An installation is atomic: if a step fails, Install undoes the others, and an upgrade whose service does not start
// restores the previous version. Containers are never touched: the unit stops only the process.
//
// It must not know what the service does, nor what its flags mean.
package systemd
