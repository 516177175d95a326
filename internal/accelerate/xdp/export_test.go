package xdp

// Took is how many packets the program has forwarded.
func (d *Driver) Took() (n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program == nil {
		return 0
	}
	for of, sum := range d.program.read() {
		if of.Farm != "" {
			n += sum.Times
		}
	}
	return n
}

// Dropped is how many packets the program has dropped.
func (d *Driver) Dropped() (n uint64) {
	for _, dropped := range d.dropped() {
		n += dropped
	}
	return n
}

// Withdraw leaves farms to the base, as before a change of that.
func (d *Driver) Withdraw(farms ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.program.withdraw(farms)
}
