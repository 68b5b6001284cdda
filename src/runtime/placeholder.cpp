namespace gramian {}
