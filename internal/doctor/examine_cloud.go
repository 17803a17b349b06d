package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

func folder(v View) []Finding {
	f := v.Folder
	switch {
	case errors.Is(f.Err, fs.ErrPermission):
		return warn(fmt.Sprintf("%s cannot be read by you", f.Path), "sudo cloudless doctor")
	case f.Err != nil:
		// The error says what is wrong and, after a colon, how to fix it.
		wrong, mend, _ := strings.Cut(f.Err.Error(), ": ")
		return fail(wrong, mend)
	case !f.Exists:
		return ok(f.Path + " is free for a new cloud")
	case f.Cluster != "" && f.Member != "" && f.Cluster != f.Member:
		return fail(fmt.Sprintf("%s is of cluster %s, and the certificate in it of cluster %s", f.Path, f.Cluster, f.Member),
			"restore it from a backup, or remove it with: cloudless down --purge --data-dir "+f.Path)
	case f.Holder == 0 && f.Orphans > 0:
		return warn(fmt.Sprintf("%d containers of %s run while no process looks after them", f.Orphans, f.Path),
			"cloudless up takes them back, cloudless down stops them; both with --data-dir "+f.Path)
	case f.Holder != 0:
		return ok(fmt.Sprintf("process %d runs on %s", f.Holder, f.Path))
	}
	return ok("nothing runs on " + f.Path)
}

func certificates(v View) (all []Finding) {
	for _, c := range v.Certificates {
		left := c.NotAfter.Sub(v.Clock.Now)
		until := c.NotAfter.UTC().Format(time.DateTime)
		switch {
		case v.Clock.Now.Before(c.NotBefore):
			all = append(all, fail(c.What+" is good only from "+c.NotBefore.UTC().Format(time.DateTime)+" on: the clock is behind", "timedatectl set-ntp true")...)
		case left <= 0:
			all = append(all, fail(c.What+" has expired on "+until, c.Mend)...)
		case left < c.Life/4: // certificates are renewed when a third is left
			all = append(all, warn(c.What+" expires on "+until+" and has not been renewed", c.Mend)...)
		default:
			all = append(all, ok(c.What+" is good until "+until)...)
		}
	}
	return all
}

func ports(v View) (all []Finding) {
	for _, p := range v.Ports {
		name := fmt.Sprintf("port %d/%s for %s", p.Number, p.Network, p.What)
		switch {
		case p.UsedBy == "":
			all = append(all, ok(name+" is free")...)
		case p.Ours:
			all = append(all, ok(name+" is used by this cloud itself")...)
		default:
			all = append(all, fail(name+" is used by "+p.UsedBy, "stop that, or choose another port")...)
		}
	}
	return all
}

func leftovers(v View) (all []Finding) {
	if !v.Root {
		return nil // only root sees the owners of processes and files
	}
	for _, l := range v.Leftovers {
		all = append(all, warn(l.Path+" was left behind by a cloud that runs no more", l.Mend)...)
	}
	if len(all) == 0 {
		return ok("nothing was left behind")
	}
	return all
}

func containerd(v View) []Finding {
	if v.Containerd == nil {
		return nil
	}
	if v.Containerd.Err != nil {
		return fail(fmt.Sprintf("containerd at %s cannot be reached: %v", v.Containerd.Address, v.Containerd.Err), "systemctl start containerd")
	}
	return ok("containerd answers at " + v.Containerd.Address)
}
