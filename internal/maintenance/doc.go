// Package maintenance is what the commands down, install, uninstall and cluster recover do. They change a data folder or
// a service while no process runs on the folder, or stop the process first.
//
// It must not know how the parts of a process run.
package maintenance
