"""A model's own forward, driven layer by layer through hooks:

decoder.py   where the layers are, and the linear layers and expert stacks in them
experts.py   stacks of experts without modules of their own: their products are watched
capture.py   one pass of the calibration rows over the original model: what each layer is called with, and a probe of shared inputs
subject.py   what the engine must know of the model
driver.py    takes the batches through layer after layer while the engine solves
"""
