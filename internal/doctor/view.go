package doctor

import "time"

// View is what was seen of a machine. The zero value of a part means that it was
// not looked at only where its comment says so.
type View struct {
	OS, Arch, Kernel string
	Root             bool
	// Installer is how this machine installs a package, such as "apt-get install -y"; empty if that is not known.
	Installer string
	Runc      Runc
	// The probes: nil if it works.
	NFTables, Links, Overlay error
	// Forwarding is whether the kernel passes IPv4 packets on.
	Forwarding bool
	Cgroups    Cgroups
	Disk       Disk
	Memory     Memory
	Ports      []Port
	Clock      Clock
	Folder     Folder
	// Certificates that lie on this machine.
	Certificates []Certificate
	// Leftovers of clouds that run no more.
	Leftovers []Leftover
	// Containerd is the outside one; nil if none is configured.
	Containerd *Containerd
}

// Runc is the program that starts containers.
type Runc struct {
	Path, Version string
	// Err is why it cannot be found or run.
	Err error
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
	// Inodes are 0 of 0 where the file system has no fixed number.
	FreeInodes, Inodes uint64
	Err                error
}

// Memory of the machine.
type Memory struct{ Available, Total uint64 }

// Port is one that something is about to listen on.
type Port struct {
	// What it is for, such as "the API".
	What    string
	Network string // tcp or udp
	Number  uint16
	// UsedBy is who listens on it now; empty if nobody does.
	UsedBy string
	// PID is the process that does; 0 if it cannot be seen.
	PID int
	// Ours is whether that is the process of this cloud.
	Ours bool
}

// Clock of the machine.
type Clock struct {
	Now time.Time
	// Synchronized is whether the kernel's clock follows another one.
	Synchronized bool
	// Skew is by how much the server is ahead; nil if no server could be asked.
	Skew *time.Duration
}

// Folder is the data folder.
type Folder struct {
	Path string
	// Exists is whether it is the folder of a cloud.
	Exists bool
	// Err is why it cannot be used: damaged, of a newer version, open to others.
	Err error
	// Holder is the process that runs on it; 0 if none does.
	Holder int
	// Cluster and Member are the clusters of which the folder and the node's certificate say that they are; empty if not known.
	Cluster, Member string
	// Containers run although no process holds the folder.
	Orphans int
}

// Certificate lies on this machine.
type Certificate struct {
	What                string
	NotBefore, NotAfter time.Time
	// Life is how long it held when it was issued; that it is dated back does not count.
	Life time.Duration
	// Mend is what to do when it has expired.
	Mend string
}

// Leftover is something that a cloud has left behind.
type Leftover struct{ Path, Mend string }

// Containerd is one that was not started by us.
type Containerd struct {
	Address string
	// Err is why it cannot be reached.
	Err error
}
