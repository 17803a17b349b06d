package doctor

import "time"

// View is the state of a machine. A zero value means "not inspected" only where the comment says so.
type View struct {
	OS, Arch, Kernel string
	Root             bool
	// Installer is the command that installs packages, such as "apt-get install -y"; empty if unknown.
	Installer string
	Runc      Runc
	// The errors of probes, nil if they succeed.
	NFTables, BridgeRules, Links, Overlay error
	// Forwarding reports whether the kernel forwards IPv4 packets.
	Forwarding bool
	Cgroups    Cgroups
	Disk       Disk
	Memory     Memory
	Ports      []Port
	Clock      Clock
	Folder     Folder
	// Certificates stored on this machine.
	Certificates []Certificate
	// Leftovers of clouds that no longer run.
	Leftovers []Leftover
	// Containerd is the external containerd; nil if none is configured.
	Containerd *Containerd
}

// Runc is the program that starts containers.
type Runc struct {
	Path, Version string
	// Err is why it cannot be found or run.
	Err error
	// Package is the version of the distribution's package that it is from; empty if it is from none.
	Package string
	// Patched are the CVEs that the package's changelog names, if it could be read.
	Patched       []string
	ChangelogRead bool
}

// Cgroups are the kernel's control groups.
type Cgroups struct {
	// Version is "1", "2" or "hybrid", which is 1 with 2 beside it; empty if none is mounted.
	Version     string
	Controllers []string
}

// Disk is the file system of the data folder.
type Disk struct {
	Path        string
	Free, Total uint64
	// Inodes are 0 of 0 if the file system has no fixed number.
	FreeInodes, Inodes uint64
	Err                error
}

// Memory of the machine.
type Memory struct{ Available, Total uint64 }

// Port is a port to listen on.
type Port struct {
	// What it is for, such as "the API".
	What    string
	Network string // tcp or udp
	Number  uint16
	// UsedBy is the program that listens on it now; empty if none does.
	UsedBy string
	// PID is the process of that program; 0 if it is not visible.
	PID int
	// Ours reports whether that is the process of this cloud.
	Ours bool
}

// Clock of the machine.
type Clock struct {
	Now time.Time
	// Synchronized reports whether the kernel's clock is synchronized, for example by NTP.
	Synchronized bool
	// Skew is how far the server's clock is ahead; nil if no server answered.
	Skew *time.Duration
}

// Folder is the data folder.
type Folder struct {
	Path string
	// Exists reports whether it is the folder of a cloud.
	Exists bool
	// Err is why it cannot be used: damaged, of a newer version, open to others.
	Err error
	// Holder is the process that holds it; 0 if none does.
	Holder int
	// Cluster and Member are the clusters of the folder and of the node's certificate; empty if unknown.
	Cluster, Member string
	// Containers counts those that run although no process holds the folder.
	Orphans int
}

// Certificate is a certificate on this machine.
type Certificate struct {
	What                string
	NotBefore, NotAfter time.Time
	// Life is its lifetime when it was issued, without the backdating.
	Life time.Duration
	// Mend is what to do when it has expired.
	Mend string
}

// Leftover is something that a cloud left behind.
type Leftover struct{ Path, Mend string }

// Containerd is an external containerd.
type Containerd struct {
	Address string
	// Err is why it cannot be reached.
	Err error
}
